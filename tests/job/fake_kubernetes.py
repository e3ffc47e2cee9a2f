"""An API server that does what a test says, over real HTTP: objects in memory, lists, watches, and whatever goes wrong."""

import base64
import json
import os
import re
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "..", "scripts"))
from mini_portforward import serve_portforward

PATH = re.compile(r"(/api/v1|/apis/[\w.]+/v1)/namespaces/([^/]+)/(\w+)(?:/([^/]+))?(/log)?")


class FakeKubernetes:
    """The objects of one namespace, by (list, name); all changes have a number."""

    def __init__(self):
        self.objects = {}
        self.logs = {}
        # (number, list, kind, object); what is older than `kept` is not known any more.
        self.history = []
        self.version = 100
        self.kept = 0
        # (method, list, status, headers): each stands for one answer.
        self.faults = []
        # How often each list was asked for as a whole, and watched.
        self.asked = []
        self.is_down = False
        self.changed = threading.Condition()
        self.epoch = 0
        self.is_polite = False
        # The status of the answer to who wants a port of a pod, or None to forward it; and pods of which there is never an answer.
        self.refuses_forwards = None
        self.silent = set()
        self.forwards = []

    # What tests do -------------------------------------------------------------------------------------------------------
    def put(self, kind, name, document):
        """Make an object, or change it."""
        with self.changed:
            before = self.objects.get((kind, name))
            self.version += 1
            metadata = document.setdefault("metadata", {})
            metadata |= {"name": name, "resourceVersion": str(self.version)}
            metadata.setdefault("uid", before["metadata"]["uid"] if before else f"uid-{self.version}")
            self.objects[kind, name] = document
            self._tell(kind, "MODIFIED" if before else "ADDED", document)

    def drop(self, kind, name):
        """Delete one; with a StatefulSet its pods go."""
        with self.changed:
            self.version += 1
            document = self.objects.pop((kind, name))
            document["metadata"]["resourceVersion"] = str(self.version)
            self._tell(kind, "DELETED", document)
            pods = [
                one
                for of, one in self.objects
                if of == "pods" and kind == "statefulsets" and one.startswith(f"{name}-")
            ]
        for pod in pods:
            self.drop("pods", pod)

    def forget(self):
        """Know nothing any more of what has happened so far: watches from then on are refused, and those that are open cut."""
        with self.changed:
            # Something else has happened besides: who had heard of all changes so far would not notice.
            self.version += 1
            self.kept = self.version
        self.cut()

    def cut(self, *, politely=False):
        """End all watches: in the middle of a line, or as a server does after a while."""
        with self.changed:
            self.epoch += 1
            self.is_polite = politely
            self.changed.notify_all()

    def cut_forwards(self):
        """Cut all ways to ports of pods."""
        for connection in self.forwards:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def names(self):
        """All there is, without pods and events."""
        with self.changed:
            return sorted(f"{kind}/{name}" for kind, name in self.objects if kind not in ("pods", "events"))

    def _tell(self, kind, what, document):
        self.history.append((self.version, kind, what, json.loads(json.dumps(document))))
        self.changed.notify_all()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        kube, (kind, name, is_log), query = self.server.kube, self.meant(), parse_qs(urlsplit(self.path).query)
        if self.path.partition("?")[0].endswith("/portforward"):
            self.forward(self.path.partition("?")[0].split("/")[-2], int(query["ports"][0]))
        elif not self.goes_wrong(kind):
            if is_log:
                self.answer(200, kube.logs.get(name, "").encode(), "text/plain")
            elif "watch" in query:
                self.watch(kind, query)
            elif name is not None:
                self.answer_with(kind, name)
            else:
                self.answer_list(kind, query)

    def do_POST(self):
        kube, (kind, _, _) = self.server.kube, self.meant()
        document = self.body()
        if not self.goes_wrong(kind):
            name = document["metadata"]["name"]
            if (kind, name) in kube.objects:
                self.refuse(409, f'{kind} "{name}" already exists')
            else:
                texts = document.pop("stringData", {})
                document["data"] = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
                kube.put(kind, name, document)
                self.answer_with(kind, name)

    def do_PATCH(self):
        kube, (kind, name, _) = self.server.kube, self.meant()
        changes = self.body()
        if not self.goes_wrong(kind):
            document = json.loads(json.dumps(kube.objects[kind, name]))
            document["spec"] |= changes["spec"]
            kube.put(kind, name, document)
            self.answer_with(kind, name)

    def do_DELETE(self):
        kube, (kind, name, _) = self.server.kube, self.meant()
        wanted = self.body()["preconditions"]["uid"]
        if not self.goes_wrong(kind):
            if (kind, name) not in kube.objects:
                self.refuse(404, f'{kind} "{name}" not found')
            elif kube.objects[kind, name]["metadata"]["uid"] != wanted:
                self.refuse(409, "the UID in the precondition does not match")
            else:
                kube.drop(kind, name)
                self.answer(200, b"{}")

    def meant(self):
        """(list, name, whether its log) that the path is about."""
        path = urlsplit(self.path).path
        found = PATH.fullmatch(path)
        if found is None:
            return "namespaces", path.rpartition("/")[2], False
        return found[3], found[4], bool(found[5])

    def goes_wrong(self, kind):
        """Whether the test has something else to answer, or the namespace is not there."""
        kube = self.server.kube
        if kube.is_down:
            self.close_connection = True
            return True
        for fault in kube.faults:
            method, of, status, headers = fault
            if (method, of) == (self.command, kind):
                kube.faults.remove(fault)
                self.refuse(status, "the test says so", headers)
                return True
        if "/namespaces/nowhere" in self.path:
            self.refuse(404, 'namespaces "nowhere" not found')
            return True
        return False

    def matching(self, kind, query, document):
        wanted = [one.split("=") for one in query.get("labelSelector", [""])[0].split(",") if one]
        labels = document["metadata"].get("labels", {})
        return all(labels.get(key) == value for key, value in wanted)

    def answer_list(self, kind, query):
        kube = self.server.kube
        with kube.changed:
            kube.asked.append(("list", kind))
            items = [one for (of, _), one in kube.objects.items() if of == kind and self.matching(kind, query, one)]
            text = json.dumps({"metadata": {"resourceVersion": str(kube.version)}, "items": items})
        self.answer(200, text.encode())

    def watch(self, kind, query):
        kube, version = self.server.kube, int(query["resourceVersion"][0])
        kube.asked.append(("watch", kind))
        if version < kube.kept:
            self.refuse(410, "too old resource version")
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        epoch = kube.epoch
        self.close_connection = True
        while True:
            with kube.changed:
                while kube.epoch == epoch and kube.version == version:
                    kube.changed.wait()
                if kube.epoch != epoch:
                    break
                news = [one for one in kube.history if one[0] > version and one[1] == kind]
                version = kube.version
            for _, _, what, document in news:
                if self.matching(kind, query, document):
                    self.chunk(json.dumps({"type": what, "object": document}).encode() + b"\n")
        self.chunk(b"" if kube.is_polite else b'{"type": "MODIF')

    def chunk(self, data):
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        except OSError:
            pass  # whoever watched has gone

    def forward(self, pod, port):
        kube = self.server.kube
        kube.asked.append(("forward", pod))
        if pod in kube.silent:
            self.connection.recv(1)  # until whoever asks goes away
            return
        if kube.refuses_forwards is not None:
            self.refuse(kube.refuses_forwards, "the test forwards nothing")
            return
        kube.forwards.append(self.connection)
        serve_portforward(self, kube.objects["pods", pod]["status"]["podIP"], port)

    def answer_with(self, kind, name):
        found = self.server.kube.objects.get((kind, name))
        if found is None:
            self.refuse(404, f'{kind} "{name}" not found')
        else:
            self.answer(200, json.dumps(found).encode())

    def refuse(self, status, message, headers=()):
        self.answer(
            status, json.dumps({"kind": "Status", "message": message, "code": status}).encode(), headers=headers
        )

    def answer(self, status, body, content="application/json", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Type", content)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # connections that are cut are what is tested


@contextmanager
def serving(folder):
    """A fake, and the kubeconfig that names it."""
    server = Server(("127.0.0.1", 0), Handler)
    kube = server.kube = FakeKubernetes()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
        "users": [{"name": "user", "user": {"token": "t"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "user", "namespace": "lab"}}],
    }  # fmt: skip
    kube.kubeconfig = str(folder / "kubeconfig")
    with open(kube.kubeconfig, "w") as file:
        json.dump(config, file)
    try:
        yield kube
    finally:
        kube.cut()
        server.shutdown()
        thread.join()
        server.server_close()
