//! Where a host listens, and sockets to there.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_ipv6_v6only, set_socket_keepalive, set_socket_reuseaddr, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_nodelay, set_tcp_user_timeout,
};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with,
};

/// Connections that the kernel keeps for a listener that is busy.
const BACKLOG: i32 = 1_024;

/// What was sent and is not acknowledged for so long ends a connection; the session goes on over another. Also where the
/// other end has no room for it, which costs a busy one a reconnect.
const UNANSWERED_MS: u32 = 2_000;

/// From one sign of life of the system at the other end of a silent connection to the next.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Where a host listens. Prints and parses as users write it: `10.0.0.1:7000`, `[fd00::1]:7000`, `unix:/run/roost`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A TCP port.
    Ip(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        text.parse().map(Self::Ip).map_err(|_| {
            format!("{text:?} is not an address: give NUMBER:PORT, [NUMBER]:PORT for IPv6, or unix:PATH")
        })
    }
}

impl Address {
    /// A socket that does not block, and whether it connects at once.
    pub(super) fn dial(&self) -> Result<OwnedFd, Errno> {
        let socket = self.socket()?;
        let result = match self {
            Self::Ip(address) => connect(&socket, address),
            Self::Unix(path) => connect(&socket, &SocketAddrUnix::new(path.as_path())?),
        };
        match result {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(error) => Err(error),
        }
    }

    /// A listener, and the address that it has: port 0 becomes a number.
    pub(super) fn listen(&self) -> Result<(OwnedFd, Self), Errno> {
        let socket = self.socket()?;
        match self {
            Self::Ip(address) => {
                // Without it an agent that was started again would wait for a minute for its old connections to be forgotten.
                set_socket_reuseaddr(&socket, true)?;
                if address.is_ipv6() {
                    // "[::]" is for both; the system's own setting must not decide.
                    set_ipv6_v6only(&socket, false)?;
                }
                bind(&socket, address)?;
            }
            Self::Unix(path) => {
                self.clear(path)?;
                // The file gets what the socket has, less what the umask takes away: for its user alone, from the first moment.
                fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
                bind(&socket, &SocketAddrUnix::new(path.as_path())?)?;
            }
        }
        listen(&socket, BACKLOG)?;
        let own = match self {
            Self::Ip(_) => Self::Ip(SocketAddr::try_from(getsockname(&socket)?)?),
            Self::Unix(_) => self.clone(),
        };
        Ok((socket, own))
    }

    /// Take away the socket of an agent that has ended.
    fn clear(&self, path: &Path) -> Result<(), Errno> {
        let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        let nobody_listens = || {
            let dialled = SocketAddrUnix::new(path).and_then(|at| connect(self.socket()?, &at));
            dialled == Err(Errno::CONNREFUSED)
        };
        if is_socket && nobody_listens() {
            fs::remove_file(path)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::ADDRINUSE))?;
        }
        Ok(())
    }

    fn socket(&self) -> Result<OwnedFd, Errno> {
        let family = match self {
            Self::Ip(SocketAddr::V4(_)) => AddressFamily::INET,
            Self::Ip(SocketAddr::V6(_)) => AddressFamily::INET6,
            Self::Unix(_) => AddressFamily::UNIX,
        };
        socket_with(
            family,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
    }
}

/// What every TCP connection of ours is set to once it is there. A socket of another family has no such things.
pub(super) fn settle(socket: &OwnedFd) {
    // A small message must not wait for the next.
    let _ = set_tcp_nodelay(socket, true);
    // TCP itself tries again ever more rarely, and would sleep on for seconds after a cut has healed.
    let _ = set_tcp_user_timeout(socket, UNANSWERED_MS);
    // Who waits for an answer has nothing to send that would tell it of a cut.
    let _ = set_tcp_keepidle(socket, KEEP_ALIVE);
    let _ = set_tcp_keepintvl(socket, KEEP_ALIVE);
    let _ = set_socket_keepalive(socket, true);
}
