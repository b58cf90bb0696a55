"""The outrider library: clients, contracts and what the services share."""
