"""The HTTP server of a workspace.

`app` makes the routes of the operations in `rayjobs.remote.operations`, other modules the rest.
`access` checks tokens and roles, `audit` records changes.
"""
