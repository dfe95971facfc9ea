"""Proxies the streams and exit code of a forked process (`tests.fakes.nursery`): `python -I -S stand_in.py DOOR MODULE ARGUMENT...`."""

import json
import os
import signal
import socket
import sys

link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect(sys.argv[1])
told = {"argv": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: link.send(str(int(number)).encode()))
socket.send_fds(link, [json.dumps(told).encode()], [0, 1, 2])
for fd in (0, 1, 2):
    os.close(fd)
code = int(link.recv(64) or 1)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
