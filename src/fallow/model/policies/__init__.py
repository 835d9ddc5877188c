"""What people asked for, one file per custom resource."""
