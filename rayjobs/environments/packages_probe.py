"""Code that makes an attempt's own interpreter print its version and packages.

The interpreter may have any version and may not have rayjobs.
"""

PROBE = """
import json, platform, re, sys
try:
    from importlib import metadata
except ImportError:
    import importlib_metadata as metadata
packages, torch = {}, {}
for one in metadata.distributions():
    name = one.metadata["Name"]
    if not name:
        continue
    packages.setdefault(re.sub(r"[-_.]+", "-", name).lower(), str(one.version))
    if name == "torch":
        try:
            text = one.locate_file("torch/version.py").read_text()
            torch = dict(re.findall(r"^(cuda|hip)[^=\\n]*=\\s*['\\"]([^'\\"]+)", text, re.M))
        except OSError:
            pass
print(json.dumps({
    "python": platform.python_version(),
    "implementation": platform.python_implementation(),
    "torch_built_for": torch,
    "packages": sorted(packages.items()),
}))
"""
