"""Who calls a host's port without being asked: each says what became of the connection."""

import asyncio
import ssl
import subprocess
from contextlib import suppress

# A handshake's deadline, and what a busy machine adds.
CLOSED_S = 5.0 + 5.0
PREAMBLE = ANSWER = 64
# Where a preamble names the proc that is called; zeros are the host itself.
CALLED = slice(52, 60)


async def opened(host, source):
    """A connection from an address of one's own, so that no other's failures count."""
    return await asyncio.open_connection(host.address, host.port, local_addr=(source, 0))


async def until_closed(reader, writer):
    """What the host says until it closes the connection, which it has to."""
    said = bytearray()
    try:
        async with asyncio.timeout(CLOSED_S):
            with suppress(ConnectionError):
                while chunk := await reader.read(1 << 16):
                    said += chunk
    finally:
        writer.transport.abort()
    return bytes(said)


async def says(host, source, data):
    """Say all of it at once, and listen."""
    reader, writer = await opened(host, source)
    writer.write(data)
    return await until_closed(reader, writer)


async def dribbles(host, source, data, pause_s=0.2):
    """Say it byte for byte."""
    reader, writer = await opened(host, source)
    listener = asyncio.ensure_future(until_closed(reader, writer))
    for byte in data:
        if listener.done():
            break
        writer.write(bytes([byte]))
        await asyncio.sleep(pause_s)
    return await listener


async def connects_and_leaves(host, source):
    """As who looks for open ports."""
    _, writer = await opened(host, source)
    writer.transport.abort()


async def speaks_tls(host, source, begin, certificate=None):
    """TLS behind these bytes, with the certificate of another, or none; whether the host went on with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["roost-lane", "roost-join"])
    if certificate is not None:
        context.load_cert_chain(certificate)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="roost")
    reader, writer = await opened(host, source)
    writer.write(begin)
    if begin:
        await reader.readexactly(ANSWER)
    said = b""
    try:
        async with asyncio.timeout(CLOSED_S):
            while True:
                with suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    # The certificate is looked at after the client is done.
                    tls.write(b"let me in, let me in, let me in" * 100)
                    said = tls.read() or said
                writer.write(outgoing.read())
                chunk = await reader.read(1 << 16)
                if not chunk:
                    return said
                incoming.write(chunk)
    except (OSError, ssl.SSLError):
        return said
    finally:
        writer.transport.abort()


def certificate_of_another(folder):
    """A certificate and its key that no authority of the job knows."""
    path = folder / "another.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
        "-subj", "/CN=roost", "-keyout", "-", "-out", "-",
    ]  # fmt: skip
    path.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    return path
