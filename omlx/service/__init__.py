"""A *service*: the server in the hands of the system's service manager, which starts it at login and after a crash.

launchd on macOS, systemd's user instance on Linux. A `ServiceJob` says what is run, a `Manager` writes it down in
its system's words and tells the system about it. Where the system's own program (`launchctl`, `systemctl`) is
missing, files are still written and nothing is run.
"""
