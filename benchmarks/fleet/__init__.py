"""Load harness for several gateways: replicas behind nginx on one PostgreSQL server, under load, while they are killed and upgraded.

    python -m benchmarks.fleet calls | tasks | replicas | all [--runs N] [--write]

`site` starts the processes, `clients` and `traffic` make the load, `disturbances` kills and upgrades replicas, `judge` decides about each
answer, `meters` reads memory, CPU and the database, and `report` prints the figures and the targets that they meet or miss.
"""
