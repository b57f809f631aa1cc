"""Consumers of events: delivery to observers, figures, metrics, traces, log lines."""
