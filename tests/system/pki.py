"""An authority with certificates of its own, by openssl. No pytest here."""

import subprocess

import roost

_CONFIG = """\
[ca]
default_ca = own
[own]
database = {folder}/index
new_certs_dir = {folder}
policy = any
unique_subject = no
rand_serial = yes
[any]
commonName = supplied
"""
_EXTENSIONS = "subjectAltName = {name}\nextendedKeyUsage = serverAuth, clientAuth\n"
_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
# Years in which what it issues is valid.
NOW, PAST, FUTURE = (2000, 2049), (2000, 2001), (2047, 2049)


def _openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """One, in a folder of its own."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.certificate, self._issued = folder, folder / "ca.pem", 0
        (folder / "index").touch()
        (folder / "config").write_text(_CONFIG.format(folder=folder))
        _openssl(
            "req", "-x509", *_NEW_KEY, "-days", 3650, "-subj", "/CN=authority", "-keyout", folder / "ca.key", "-out",
            self.certificate,
        )  # fmt: skip

    def issue(self, name="IP:127.0.0.1", years=NOW, ca=None):
        """Files of a new certificate, as `attach(tls=…)` takes them; `ca`: whom its owner believes, this authority else."""
        self._issued += 1
        at = self.folder / str(self._issued)
        key, request, certificate, more = (at.with_suffix(f".{kind}") for kind in ("key", "csr", "pem", "ext"))
        more.write_text(_EXTENSIONS.format(name=name))
        _openssl("req", "-new", *_NEW_KEY, "-subj", "/CN=member", "-keyout", key, "-out", request)
        key.chmod(0o600)
        begin, end = (f"{year}0101000000Z" for year in years)
        _openssl(
            "ca", "-batch", "-notext", "-config", self.folder / "config", "-md", "sha256", "-cert",
            self.certificate, "-keyfile", self.folder / "ca.key", "-startdate", begin, "-enddate", end, "-extfile", more,
            "-in", request, "-out", certificate,
        )  # fmt: skip
        return roost.Tls(ca=ca or self.certificate, certificate=certificate, key=key)


def options(tls):
    """The same, as an agent takes them."""
    return ["--tls-ca", str(tls.ca), "--tls-certificate", str(tls.certificate), "--tls-key", str(tls.key)]
