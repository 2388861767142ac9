"""Recognizes likely secrets by a file's name or content."""

from __future__ import annotations

import fnmatch
import re

# Names of files and folders, whatever their case. A false alarm costs one line in
# .rayjobsignore; a missed one puts a key on every node.
NAMES = (
    ".env*",
    "*.env",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.ppk",
    "*.jks",
    "*.kdbx",
    "*.keystore",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".gcloud",
    ".kaggle",
    "kaggle.json",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".pypirc",
    ".npmrc",
    ".boto",
    ".s3cfg",
    ".passwd-s3fs",
    ".htpasswd",
    ".git-credentials",
    ".vault-token",
    "credentials*",
    "*.credentials",
    "secrets.json",
    "secrets.toml",
    "secrets.y*ml",
    "secrets.ini",
    "client_secret*.json",
    "*service[-_]account*.json",
    "*.tfstate",
    "*.tfvars",
)
_NAME = re.compile("|".join(fnmatch.translate(name) for name in NAMES), re.IGNORECASE)

# Only patterns with hardly any false positives.
_CONTENT = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"
    rb"|\b(?:AKIA|ASIA)(?![0-9A-Z]{9}EXAMPLE)[0-9A-Z]{16}\b"
    rb"|\bgh[pousr]_[A-Za-z0-9]{36}\b"
    rb"|\bgithub_pat_[A-Za-z0-9_]{60,}"
    rb"|\bglpat-[A-Za-z0-9_-]{20}\b"
    rb"|\bhf_[A-Za-z]{34}\b"
    rb"|\bsk-(?:proj-|ant-)?[A-Za-z0-9_-]{40,}"
    rb"|\bxox[abprs]-[A-Za-z0-9-]{20,}"
)
_SENSITIVE_WORD = re.compile(
    r"(?:^|[-_.])(?:password|passwd|pwd|secret|secretkey|token|api[-_]?key|access[-_]?key"
    r"|account[-_]?key|private[-_]?key|sas[-_]?token|credential)s?$",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Return whether a file or folder of this name likely holds a secret."""
    return _NAME.match(name) is not None


def holds_secret(content: bytes) -> bool:
    """Return whether the bytes hold a private key or a well-known kind of token."""
    return _CONTENT.search(content) is not None


def is_sensitive_word(name: str) -> bool:
    """Return whether an option or variable of this name likely takes a secret."""
    return _SENSITIVE_WORD.search(name) is not None
