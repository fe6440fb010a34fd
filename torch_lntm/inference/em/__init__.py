"""EM: variational and Monte-Carlo engines over one resumable loop."""
