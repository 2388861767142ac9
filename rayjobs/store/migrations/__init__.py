"""Steps from one version of the store's schema to the next, carried out by alembic."""
