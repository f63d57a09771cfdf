"""Pure maths and algorithms: returns, losses, normalizers, one file per algorithm. Knows no wire."""
