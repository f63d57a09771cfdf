"""Generated protobuf code and nothing else. Made by `make proto` from proto/headrace/v1."""
