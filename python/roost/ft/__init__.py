"""Training that goes on while its replicas die: see the guide's chapter on it."""
