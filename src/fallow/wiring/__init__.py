"""Who is given what: the only place that assembles. `daemon`: a loop with its stories. `reach`: a person's commands."""
