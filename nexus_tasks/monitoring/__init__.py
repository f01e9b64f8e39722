"""What an operator sees of a running deployment: metrics and health, over HTTP and on the command line."""
