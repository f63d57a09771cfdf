"""The command line ``headrace``: one file a group of commands, imported only when the command is used."""
