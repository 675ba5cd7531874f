"""Show the newest frame of detector.py on a web page: ``page.py [PORT]``."""

import struct
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

import poolbridge

PAGE = b"""<!doctype html><title>detections</title><img id="frame" src="/frame.bmp">
<script>
const frame = document.getElementById("frame");
frame.onload = () => setTimeout(() => (frame.src = `/frame.bmp?${Date.now()}`), 40);
</script>"""


def bmp(image: np.ndarray) -> bytes:
    """Return an image as a file of type BMP, which needs no library."""
    height, width, _ = image.shape
    header = struct.pack("<2sI4xII", b"BM", 54 + image.nbytes, 54, 40)
    header += struct.pack("<iiHH24x", width, -height, 1, 24)
    return header + image[:, :, ::-1].tobytes()


class Handler(BaseHTTPRequestHandler):
    """Answers with the page, or with the newest frame."""

    def do_GET(self) -> None:
        """Answer one request; each has a thread."""
        body, kind = PAGE, "text/html"
        if self.path.startswith("/frame.bmp"):
            try:
                frame = channel.latest(timeout=60)
            except poolbridge.PoolbridgeError as error:
                self.send_error(503, explain=str(error))
                return
            with frame:
                body, kind = bmp(np.asarray(frame)), "image/bmp"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


print("waiting for the service and detector.py", file=sys.stderr)
with poolbridge.connect(wait=60) as client:
    channel = client.open_channel("detections", timeout=60)
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8080
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
