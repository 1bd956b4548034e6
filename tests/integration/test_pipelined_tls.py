"""Redis behind TLS: one URL means the same to our shared connection and to redis-py."""

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.asyncio import Redis
from service.adapters.cache import RecallCache
from service.adapters.pipelined import PipelinedRedis
from service.errors import CacheUnavailable
from service.scope import bank_of

from tests.support import RedisServer

pytestmark = pytest.mark.anyio


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for this machine's loopback address: certificate and both in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / f"{name}.pem").write_bytes(public)
    (folder / f"{name}-both.pem").write_bytes(public + secret)
    return folder / f"{name}.pem", folder / f"{name}-both.pem"


@pytest.fixture
async def tls_port(redis_server: RedisServer, folder: Path) -> AsyncIterator[int]:
    """A port that speaks TLS and hands everything on to the server: its wheel has no TLS of its own."""
    _, both = certificate(folder, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    plain_port = int(redis_server.url.partition("//")[2].partition("/")[0].rpartition(":")[2])

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", plain_port)
        await asyncio.gather(pump(reader, other_writer), pump(other_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_a_certificate_that_is_trusted(tls_port: int, folder: Path) -> None:
    url = f"rediss://127.0.0.1:{tls_port}/3?ssl_ca_certs={folder / 'server.pem'}"
    async with PipelinedRedis(url) as redis:
        assert await redis.execute(b"SET", b"through", b"tls", b"EX", b"60") == b"OK"
        replies = await asyncio.gather(*(redis.execute(b"ECHO", b"%d" % n) for n in range(1000)))
        assert replies == [b"%d" % n for n in range(1000)]
        assert await redis.execute(b"ECHO", b"x" * 1_000_000) == b"x" * 1_000_000
        assert redis.server != b"-"
    async with Redis.from_url(url) as other:
        assert await other.get("through") == b"tls"


async def test_an_answer_is_cached_and_found(tls_port: int, folder: Path, user: str) -> None:
    url = f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={folder / 'server.pem'}"
    bank = bank_of("default", user)
    async with RecallCache(url, patience_s=5, stale_ttl_s=60) as cache:
        ends = asyncio.get_running_loop().time() + 10
        epochs = await cache.epochs(bank, ends)
        assert await cache.publish(bank, "question", epochs, b"answer", 60, ends)
        assert (await cache.find(bank, "question", ends)).current == b"answer"


@pytest.mark.parametrize("trusted", ["nobody", "somebody else"])
async def test_a_certificate_that_is_not(tls_port: int, folder: Path, trusted: str, user: str) -> None:
    other, _ = certificate(folder, "other")
    query = "" if trusted == "nobody" else f"?ssl_ca_certs={other}"
    async with RecallCache(f"rediss://127.0.0.1:{tls_port}/0{query}", patience_s=5, stale_ttl_s=60) as cache:
        with pytest.raises(CacheUnavailable):
            await cache.find(bank_of("default", user), "question", asyncio.get_running_loop().time() + 10)


async def test_a_server_without_tls(redis_server: RedisServer, user: str) -> None:
    url = redis_server.url.replace("redis://", "rediss://")
    async with RecallCache(url, patience_s=3, stale_ttl_s=60) as cache:
        with pytest.raises(CacheUnavailable):
            await cache.find(bank_of("default", user), "question", asyncio.get_running_loop().time() + 10)
