#!/bin/sh
# Takes the pictures of docs/img anew, wide in light and narrow in dark, by the tests of the console in a real Chromium.
set -e
cd "$(dirname "$0")/.."
MAINSTEM_SCREENSHOTS=1 "${PYTHON:-.venv/bin/python}" -m pytest -q -p no:randomly tests/console -m 'not slow'
