"""What every service and client shares about gRPC: servers, channels, handshakes, errors, drain."""
