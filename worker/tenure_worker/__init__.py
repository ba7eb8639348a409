"""The worker's side: claim a job, train, and leave nothing half-written that anyone could read."""
