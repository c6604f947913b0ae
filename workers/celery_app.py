"""The Celery application: broker, queues and settings, each with its reason.

Importing this module must stay light: no provider SDK, no server is touched. The addresses are looked up when Celery
first reads its configuration.
"""

from __future__ import annotations

import threading
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

from workers import servers
from workers import settings as environment

INTERACTIVE = "perdure.interactive"
BATCH = "perdure.batch"

# How long a stored result answers AsyncResult; the sender re-sends what Redis lost within this time.
RESULT_EXPIRES_S = 24 * 3600


def _queue(name: str) -> Queue:
    """Bound to itself alone: a queue without an exchange of its own hears what is meant for the default one, too."""
    return Queue(name, Exchange(name), routing_key=name)


def configuration(redis_url: str) -> dict[str, Any]:
    return {
        "broker_url": redis_url,
        "result_backend": redis_url,
        "broker_transport_options": {
            # Only perdure.submit is acknowledged late, and it takes milliseconds: a lost one comes back after a minute.
            "visibility_timeout": 60,
            # The sweep for such messages runs every interval x throttle seconds; the default is about 100 s.
            "unacked_restore_interval": 10,
            "unacked_restore_throttle": 3,
            # Without it a publisher hangs for ever on a frozen Redis. It must be longer than BRPOP's second.
            "socket_timeout": 10,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            "health_check_interval": 25,
            "max_connections": 50,
            "queue_order_strategy": "round_robin",
        },
        # The backend has its own connections, with the same reasons.
        "redis_socket_timeout": 10,
        "redis_socket_connect_timeout": 3,
        "redis_socket_keepalive": True,
        "redis_backend_health_check_interval": 25,
        "result_expires": RESULT_EXPIRES_S,
        "result_backend_transport_options": {"retry_policy": {"timeout": 3.0, "max_retries": 2}},
        # JSON alone: a message that can run code is no message.
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "task_queues": [_queue(INTERACTIVE), _queue(BATCH)],
        "task_default_queue": INTERACTIVE,
        "task_create_missing_queues": False,
        "task_routes": {"perdure.submit": {"queue": INTERACTIVE}},
        # Postgres owns recovery; a late acknowledgement would add duplicates and nothing else (measured).
        "task_acks_late": False,
        # A late-acknowledged submit whose process dies would otherwise count as done.
        "task_reject_on_worker_lost": True,
        # It would re-send as an ETA task, three minutes later.
        "task_retry_on_worker_lost": False,
        # Threads: the only pool that carries 150 turns in one process and shares its connections between them.
        "worker_pool": "threads",
        # A slot is busy for minutes: a reserved message would wait behind it.
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        # True would kill or strand running turns when the broker blinks.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # Soft shutdown crashes on the thread pool; ours is a warm one with hand-backs (workers.shutdown).
        "worker_soft_shutdown_timeout": 0,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_enable_remote_control": True,
        "broker_connection_retry_on_startup": True,
        # The default gives up after 100 tries: a worker must outlive any outage.
        "broker_connection_max_retries": None,
        # For Flower. A sent event would be one more event a task, and a metric series for every publishing process.
        "worker_send_task_events": True,
        "task_send_sent_event": False,
        "enable_utc": True,
    }


def _looked_up() -> dict[str, Any]:
    return configuration(servers.look_up(environment.load(), may_lack_redis=True).redis_url)


_reading = threading.Lock()
app = Celery("perdure", include=["workers.tasks"], set_as_current=True)
app.add_defaults(_looked_up)


def configured() -> Celery:
    """The app with its configuration read whole; to be called before other threads come to it.

    Celery reads it at the first use, and shows it to other threads while the addresses are still missing: whoever sends
    then keeps Celery's default broker for good. Raises ServersMissing.
    """
    with _reading:
        app.conf.get("broker_url")
    return app
