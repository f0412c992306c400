"""Look up the installed packages in the vulnerability database of pip-audit: `make audit` runs this.

Exits with 1 if a package has a known vulnerability, or if no package can be looked up in a CI job (where `CI` is set).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

COMMAND = [sys.executable, "-m", "pip_audit", "--skip-editable", "--progress-spinner", "off", "--format", "json"]


def main() -> int:
    audit = subprocess.run(COMMAND, check=False, capture_output=True, text=True)
    packages = json.loads(audit.stdout)["dependencies"] if audit.stdout else []
    known = [package for package in packages if "vulns" in package]
    if not known:
        reason = "the database contains no installed package" if packages else audit.stderr.splitlines()[-1]
        print(f"audit: NOT DONE for installed packages: {reason}")
        return int("CI" in os.environ)
    found = [(package, vulnerability) for package in known for vulnerability in package["vulns"]]
    for package, vulnerability in found:
        fixed = ", ".join(vulnerability["fix_versions"]) or "no version"
        print(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}")
    skipped = ", ".join(package["name"] for package in packages if "vulns" not in package) or "none"
    print(f"audit: {len(known)} packages, {len(found)} vulnerabilities; not in the database: {skipped}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
