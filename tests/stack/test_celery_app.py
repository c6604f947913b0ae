"""The Celery application: its configuration, whoever reads it first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# The address is slow to be found. A second thread comes while the first one waits for it.
TWO_THREADS = """
import threading
from workers import celery_app, servers

asked, found = threading.Event(), threading.Event()

def look_up(settings, **_):
    asked.set()
    found.wait(20)
    return servers.Addresses("postgresql+psycopg://there/db", "redis://there:1/0")

servers.look_up = look_up
seen = []
read = lambda: seen.append(celery_app.configured().conf.broker_url)
first, second = threading.Thread(target=read), threading.Thread(target=read)
first.start()
asked.wait(20)
second.start()
second.join(0.2)  # time enough for one that does not wait
found.set()
first.join()
second.join()
print(seen)
"""


def test_no_thread_sees_the_configuration_before_the_address_of_the_broker_is_in_it() -> None:
    done = subprocess.run([sys.executable, "-c", TWO_THREADS], cwd=REPOSITORY, capture_output=True, text=True)

    assert done.stdout == "['redis://there:1/0', 'redis://there:1/0']\n", done.stderr
