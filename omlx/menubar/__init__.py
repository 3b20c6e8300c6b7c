"""The *menu bar app*: a status item that shows what the server does and has its everyday switches (`omlx menubar`).

`seen` is what is known of the server at one moment, `menu` the pure function from that to entries, `control` the only
part that talks to the server, `tray` the only part that knows pystray, which brings the platform's own status item.
"""
