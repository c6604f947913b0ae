"""What Perdure costs beside the same loop without it, measured on real servers: ratios of one run, never timed tests.

`python -m ops.bench.overhead`      time, CPU, statements and WAL of an iteration
`python -m ops.bench.in_flight`     hundreds of turns in one worker: throughput and memory
`python -m ops.bench.recovery`      from kill -9 to the next model call
`python -m ops.bench.import_time`   what a service pays for the Celery application
"""
