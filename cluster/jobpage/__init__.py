"""`inv jobs.report`, `inv jobs.compare`: a job, or several, on one page that asks nothing of any network."""
