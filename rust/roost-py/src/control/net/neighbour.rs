//! Who is at the other end of a connection inside this machine: what is asked where there is no key to tell. Every user of a
//! machine reaches its loopback, and whoever joins a job, or stands for a host of it, runs code as its user.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::getsockname;
use rustix::process::geteuid;

use super::address::Address;

/// The user that has called; none when nobody has that end open any more. `from` is none for a Unix socket.
pub(super) fn caller(socket: BorrowedFd<'_>, from: Option<SocketAddr>) -> Option<u32> {
    let Some(from) = from else {
        return unix_peer(socket);
    };
    let own = getsockname(socket).ok()?.try_into().ok()?;
    let (from, own) = (canonical(from), canonical(own));
    tables()
        .iter()
        .flat_map(|table| rows(table))
        .find(|row| row.local == from && row.remote == own && row.is_held())
        .map(|row| row.user)
}

/// Whether who listens at what was dialled is this process's user, or root.
pub(super) fn is_own_listener(socket: BorrowedFd<'_>, dialled: &Address) -> bool {
    let Address::Ip(dialled) = dialled else {
        return unix_peer(socket).is_some_and(is_own);
    };
    let dialled = canonical(*dialled);
    let tables = tables();
    let mut listeners = tables
        .iter()
        .flat_map(|table| rows(table))
        .filter(|row| row.listens && row.local.port() == dialled.port())
        .filter(|row| row.local.ip() == dialled.ip() || row.local.ip().is_unspecified())
        .peekable();
    listeners.peek().is_some() && listeners.all(|row| is_own(row.user))
}

/// Whether this process may let that user's do what it does itself.
pub(super) fn is_own(user: u32) -> bool {
    user == geteuid().as_raw() || user == 0
}

/// The user that has connected a Unix socket, or listens at its other end.
fn unix_peer(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut size = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    // SAFETY: the kernel writes at most `size` bytes, which is what `peer` has; any bytes are one.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    };
    (result == 0).then_some(peer.uid)
}

/// A TCP socket of this machine.
#[derive(Debug)]
struct Row {
    local: SocketAddr,
    remote: SocketAddr,
    listens: bool,
    user: u32,
    inode: u64,
}

impl Row {
    /// Of one that nobody has open any more the kernel does not know the user, and says that it is root.
    fn is_held(&self) -> bool {
        self.inode != 0
    }

    /// A line of `/proc/net/tcp`, or `tcp6`.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        Some(Self {
            local: socket_address(fields.get(1)?)?,
            remote: socket_address(fields.get(2)?)?,
            listens: *fields.get(3)? == "0A",
            user: fields.get(7)?.parse().ok()?,
            inode: fields.get(9)?.parse().ok()?,
        })
    }
}

fn tables() -> [String; 2] {
    // Without it there are no such sockets, or none that can be told apart: then nobody is let in.
    ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default())
}

fn rows(table: &str) -> impl Iterator<Item = Row> {
    table.lines().filter_map(Row::parse)
}

/// An address as the kernel writes it: words of the machine's order, in hexadecimal digits, and a port.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| {
        let digits = address.get(8 * at..8 * at + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip = match address.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, place) in bytes.chunks_exact_mut(4).enumerate() {
                place.copy_from_slice(&word(at)?);
            }
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(
        ip,
        u16::from_str_radix(port, 16).ok()?,
    )))
}

/// Without what an IPv6 socket adds to an address of the older kind, and to its own.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
