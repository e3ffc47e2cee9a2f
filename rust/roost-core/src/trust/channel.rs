use std::io::{self, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use super::TrustError;
use super::proof::Kind;
use crate::limits::SECURE_UNSENT_BYTES_MAX;

/// What carries the proofs.
pub(super) enum Channel {
    Plain { unsent: Vec<u8> },
    Tls(Box<Connection>),
}

impl Channel {
    pub(super) fn plain() -> Self {
        Self::Plain { unsent: Vec::new() }
    }

    pub(super) fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, TrustError> {
        let connection = ClientConnection::new(config, name).map_err(TrustError::Tls)?;
        Ok(Self::tls(connection.into()))
    }

    pub(super) fn server(config: Arc<ServerConfig>) -> Result<Self, TrustError> {
        let connection = ServerConnection::new(config).map_err(TrustError::Tls)?;
        Ok(Self::tls(connection.into()))
    }

    fn tls(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(SECURE_UNSENT_BYTES_MAX));
        Self::Tls(Box::new(connection))
    }

    /// Takes what is to be written.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        match self {
            Self::Plain { unsent } => unsent.extend_from_slice(bytes),
            Self::Tls(connection) => {
                let taken = connection.writer().write_all(bytes);
                taken.expect("the proofs are far below the limit of the buffer");
            }
        }
    }

    /// Writes once.
    pub(super) fn write(&mut self, to: &mut dyn Write) -> io::Result<usize> {
        match self {
            Self::Plain { unsent } => to.write(unsent).inspect(|&count| {
                unsent.drain(..count);
            }),
            Self::Tls(connection) => connection.write_tls(to),
        }
    }

    /// Says that nothing more comes, where that can be said.
    pub(super) fn close(&mut self) {
        if let Self::Tls(connection) = self {
            connection.send_close_notify();
        }
    }

    /// What only the two ends of this very TLS session know; zeros in clear.
    pub(super) fn binding(&self, kind: Kind) -> Result<[u8; 32], TrustError> {
        match self {
            Self::Plain { .. } => Ok([0; 32]),
            Self::Tls(connection) => connection
                .export_keying_material([0; 32], kind.exporter(), None)
                .map_err(TrustError::Tls),
        }
    }
}
