# SPDX-License-Identifier: Apache-2.0
"""A file system that hangs under the files of keys and certificates: calls, new connections and the end of the server do not wait."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from authority import Authority
from command import BIN_DIR, CONFORMANCE, SANITIZER_FLAGS, SOURCE_DIR, CommandTest, rivulet

sys.path.insert(0, str(SOURCE_DIR / "tests/stress/attack"))
from victim import Victim

COMPILER = os.environ.get("RIVULET_CXX", "c++")
if shutil.which(COMPILER) is None:
    print(f"skipped: {COMPILER} is not installed; deploy/setup.sh installs it")
    sys.exit(77)
if SANITIZER_FLAGS:
    print("skipped: a sanitizer must be the first library of a process")
    sys.exit(77)

MODEL = CONFORMANCE / "tiny-elu-relu"
LIMIT = 60  # seconds that anything awaited may take
# Stands in for stat(), the first that the server asks of such a file.
LIBRARY = r"""
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
extern "C" int stat(const char* path, struct stat* info) noexcept {
  using Stat = int (*)(const char*, struct stat*);
  static const auto real = reinterpret_cast<Stat>(dlsym(RTLD_NEXT, "stat"));
  const char* const hangs = getenv("TEST_HANGS");  // a folder whose files hang while it holds the file "hang"
  if (strncmp(path, hangs, strlen(hangs)) == 0) {
    char flag[4096], seen[4096];
    strcat(strcpy(flag, hangs), "/hang");
    strcat(strcpy(seen, hangs), "/seen");
    for (bool first = true; access(flag, F_OK) == 0; first = false, usleep(1000)) {
      if (first) symlink("seen", seen);
    }
  }
  return real(path, info);
}
"""


class HangingFilesTest(CommandTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rivulet-hanging-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.files = self.folder / "files"
        self.files.mkdir()
        source, self.library = self.folder / "hang.cc", self.folder / "hang.so"
        source.write_text(LIBRARY)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", self.library, source, "-ldl"], check=True, capture_output=True)

    @contextlib.contextmanager
    def serve_with_hanging_files(self, *flags):
        """A server that has found out that its files hang."""
        with contextlib.ExitStack() as ends:
            # Only the server has the library.
            with mock.patch.dict(os.environ, {"LD_PRELOAD": str(self.library), "TEST_HANGS": str(self.files)}):
                server = ends.enter_context(Victim(BIN_DIR / "rivulet-server", "--threads", "1", *map(str, flags), model=MODEL))
            (self.files / "hang").touch()
            end = time.monotonic() + LIMIT
            while not os.path.lexists(self.files / "seen"):
                self.assertLess(time.monotonic(), end, server.log)
                self.look(server)
            yield server
            server.process.terminate()
            self.assertEqual(server.process.wait(timeout=LIMIT), 0)

    def call(self, server, *flags):
        return rivulet("generate", "--target", server.target, "--tokens", "1", "--max-tokens", "2", "--seed", "1", *flags, timeout=LIMIT)

    def test_keys(self):
        key, keys = self.folder / "key", self.files / "keys.json"
        key.write_text("secret")
        keys.write_text(json.dumps([{"name": "a", "tenant": "a", "sha256": hashlib.sha256(b"secret").hexdigest()}]))
        self.look = lambda server: self.succeeds(self.call(server, "--key-file", str(key)))
        with self.serve_with_hanging_files("--keys-file", keys) as server:
            for _ in range(3):
                self.look(server)

    def test_certificates(self):
        authority = Authority(self.files, "authority")
        cert, key = authority.sign("server")
        ca = self.folder / "ca.pem"
        ca.write_text(authority.pem.read_text())
        self.look = lambda server: self.succeeds(self.call(server, "--tls-ca", str(ca)))
        with self.serve_with_hanging_files("--tls-cert", cert, "--tls-key", key) as server:
            for _ in range(3):
                self.look(server)


if __name__ == "__main__":
    unittest.main()
