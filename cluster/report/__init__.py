"""`inv jobs.report`, `inv jobs.compare`: one or several jobs on an HTML page that needs no network."""
