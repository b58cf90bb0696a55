"""What every service shares at its edge: server, channels, errors, configuration, telemetry."""
