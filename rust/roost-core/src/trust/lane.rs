use std::fmt;
use std::sync::Arc;

use ring::hmac;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::authority::host_name;
use super::channel::Channel;
use super::proof::{Kind, Side, Terms};
use super::tls::{Beliefs, Identity, NoClock, mutual_client, mutual_server};
use super::{Credentials, Handshake, PREAMBLE_BYTES, TrustError};
use crate::id::{HostId, JobId};

/// What a process knows of its job's other hosts: enough to open lanes to them and to let them in.
pub struct Trust {
    job: JobId,
    host: HostId,
    secret: hmac::Key,
    /// None: plain TCP.
    tls: Option<(Arc<ClientConfig>, Arc<ServerConfig>)>,
}

impl Trust {
    /// Sets up what all lanes of this process share.
    ///
    /// # Errors
    ///
    /// [`TrustError::Credentials`] when they are not what an [`Authority`](super::Authority) issues.
    pub fn new(credentials: &Credentials) -> Result<Self, TrustError> {
        let tls = if credentials.plaintext {
            None
        } else {
            let error = |error: rustls::Error| TrustError::Credentials(error.into());
            let mut roots = RootCertStore::empty();
            roots.add(credentials.authority.clone().into()).map_err(error)?;
            let beliefs = Beliefs {
                roots: Arc::new(roots),
                clock: Arc::new(NoClock),
            };
            let alpn = Kind::Lane.alpn();
            Some((
                mutual_client(identity(credentials), &beliefs, alpn).map_err(error)?,
                mutual_server(identity(credentials), &beliefs, alpn)?,
            ))
        };
        Ok(Self {
            job: credentials.job,
            host: credentials.host,
            secret: hmac::Key::new(hmac::HMAC_SHA256, &credentials.secret),
            tls,
        })
    }

    /// Begins a lane to a process of this host. The preamble is what this side has sent in clear. The handshake succeeds
    /// only with a peer of this job on that very host.
    ///
    /// # Errors
    ///
    /// [`TrustError::Random`], when the system gives no random numbers.
    pub fn dial(&self, preamble: &[u8; PREAMBLE_BYTES], peer: HostId) -> Result<Handshake, TrustError> {
        let expected = host_name(self.job, peer);
        let channel = match &self.tls {
            None => Channel::plain(),
            Some((client, _)) => {
                let name = ServerName::try_from(expected.clone()).map_err(|_| TrustError::Name {
                    name: expected.clone(),
                })?;
                Channel::client(client.clone(), name)?
            }
        };
        Handshake::new(channel, self.terms(Side::Dials, preamble, peer), peer.to_string())
    }

    /// Answers a lane that a process of another host has begun with this preamble. The handshake succeeds only with a
    /// peer of this job that wanted this very host.
    ///
    /// # Errors
    ///
    /// [`TrustError::Random`], when the system gives no random numbers.
    pub fn accept(&self, preamble: &[u8; PREAMBLE_BYTES]) -> Result<Handshake, TrustError> {
        let channel = match &self.tls {
            None => Channel::plain(),
            Some((_, server)) => Channel::server(server.clone())?,
        };
        let terms = self.terms(Side::Accepts, preamble, self.host);
        Handshake::new(channel, terms, self.job.to_string())
    }

    fn terms(&self, side: Side, preamble: &[u8; PREAMBLE_BYTES], called: HostId) -> Terms {
        Terms {
            kind: Kind::Lane,
            side,
            key: self.secret.clone(),
            preamble: *preamble,
            called: Some(called),
        }
    }
}

/// Secrets stay out of logs.
impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust")
            .field("job", &self.job)
            .field("host", &self.host)
            .field("plaintext", &self.tls.is_none())
            .finish_non_exhaustive()
    }
}

fn identity(credentials: &Credentials) -> Identity {
    Identity {
        chain: vec![CertificateDer::from(credentials.certificate.clone())],
        key: PrivateKeyDer::from(PrivatePkcs8KeyDer::from(credentials.key.clone())),
    }
}
