"""Flow control as pure rules: watermarks, credits, admission, the ledger. No threads, no wires, no clocks."""
