use std::fmt;
use std::sync::Arc;

use ring::hmac;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::time_provider::DefaultTimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::authority::throw_away;
use super::channel::Channel;
use super::proof::{Kind, Side, Terms};
use super::tls::{Beliefs, Identity, mutual_client, mutual_server, open_client, open_server};
use super::{Handshake, JoinKey, PREAMBLE_BYTES, TrustError};
use crate::limits::PKI_CHAIN_BYTES_MAX;

/// The user's own certificates, instead of the throw-away ones of a join. Both sides show one.
#[derive(Clone)]
pub struct Pki {
    /// Whom to believe: certificates, PEM.
    pub roots: Vec<u8>,
    /// This side's certificate, and those between it and the roots, PEM.
    pub chain: Vec<u8>,
    /// The key of this side's certificate, PEM.
    pub key: Vec<u8>,
}

/// Secrets stay out of logs.
impl fmt::Debug for Pki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pki(…)")
    }
}

/// How a root and a host know each other when they meet. Both need the same.
#[derive(Debug, Clone, Default)]
pub struct DoorConfig {
    /// The key that both have. Without a key (and without `pki`) anybody who reaches the address may join: for sockets
    /// that only this machine or this user reaches.
    pub key: Option<JoinKey>,
    /// Certificates of the user's own PKI; a key is asked for as well when there is one.
    pub pki: Option<Pki>,
    /// No TLS: whoever sits between the two reads and changes what follows. The proofs are the same.
    pub plaintext: bool,
}

/// Begins and answers control connections: between a root and a host that have no credentials of the job yet.
pub struct Door {
    key: hmac::Key,
    /// None: plain TCP.
    tls: Option<(Arc<ClientConfig>, Arc<ServerConfig>)>,
    /// Names in certificates are checked.
    named: bool,
    /// There is nothing to prove.
    open: bool,
}

impl Door {
    /// Sets up what all control connections of this process share.
    ///
    /// # Errors
    ///
    /// [`TrustError::Pki`], [`TrustError::ChainTooLong`] and [`TrustError::Credentials`] for files that cannot be used,
    /// [`TrustError::PkiInPlaintext`] for both at once, [`TrustError::Issue`] when the system gives no random numbers.
    pub fn new(config: &DoorConfig) -> Result<Self, TrustError> {
        let tls = match (&config.pki, config.plaintext) {
            (Some(_), true) => return Err(TrustError::PkiInPlaintext),
            (None, true) => None,
            (Some(pki), false) => Some(own(pki)?),
            (None, false) => Some(open()?),
        };
        let key = config.key.as_ref().map_or(&[][..], |key| key.bytes());
        Ok(Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, key),
            tls,
            named: config.pki.is_some(),
            open: config.key.is_none() && config.pki.is_none(),
        })
    }

    /// Whether there is neither a key nor a PKI: whoever is let through to here has nothing to prove.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Begins a control connection. The preamble is what this side has sent in clear; the name is the host's, as it was
    /// dialled (`trainer-7.example`, `10.0.0.7`, `[::1]`; `localhost` for a Unix socket). With an own PKI the peer's
    /// certificate must have this name or address; without one nothing is named and it is not looked at.
    ///
    /// # Errors
    ///
    /// [`TrustError::Name`], and [`TrustError::Random`] when the system gives no random numbers.
    pub fn dial(&self, preamble: &[u8; PREAMBLE_BYTES], name: &str) -> Result<Handshake, TrustError> {
        let channel = match &self.tls {
            None => Channel::plain(),
            Some((client, _)) => {
                let asked = if self.named {
                    name.trim_matches(['[', ']'])
                } else {
                    "roost"
                };
                let server = ServerName::try_from(asked.to_owned()).map_err(|_| TrustError::Name {
                    name: name.to_owned(),
                })?;
                Channel::client(client.clone(), server)?
            }
        };
        Handshake::new(channel, self.terms(Side::Dials, preamble), name.to_owned())
    }

    /// Answers a control connection that began with this preamble. With an own PKI any certificate by its roots that is
    /// made for clients will do, whatever it names.
    ///
    /// # Errors
    ///
    /// [`TrustError::Random`], when the system gives no random numbers.
    pub fn accept(&self, preamble: &[u8; PREAMBLE_BYTES]) -> Result<Handshake, TrustError> {
        let channel = match &self.tls {
            None => Channel::plain(),
            Some((_, server)) => Channel::server(server.clone())?,
        };
        Handshake::new(channel, self.terms(Side::Accepts, preamble), String::new())
    }

    fn terms(&self, side: Side, preamble: &[u8; PREAMBLE_BYTES]) -> Terms {
        Terms {
            kind: Kind::Join,
            side,
            key: self.key.clone(),
            preamble: *preamble,
            called: None,
        }
    }
}

/// Secrets stay out of logs.
impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door")
            .field("plaintext", &self.tls.is_none())
            .field("named", &self.named)
            .finish_non_exhaustive()
    }
}

fn open() -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), TrustError> {
    let error = |error: rustls::Error| TrustError::Credentials(error.into());
    let (certificate, key) = throw_away()?;
    let identity = Identity {
        chain: vec![certificate.into()],
        key: PrivatePkcs8KeyDer::from(key).into(),
    };
    let alpn = Kind::Join.alpn();
    Ok((
        open_client(alpn).map_err(error)?,
        open_server(identity, alpn).map_err(error)?,
    ))
}

fn own(pki: &Pki) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), TrustError> {
    let mut roots = RootCertStore::empty();
    for root in certificates("roots", &pki.roots)? {
        roots
            .add(root)
            .map_err(|error| wrong("roots", CERTIFICATES, error))?;
    }
    let beliefs = Beliefs {
        roots: Arc::new(roots),
        clock: Arc::new(DefaultTimeProvider),
    };
    let alpn = Kind::Join.alpn();
    let client = mutual_client(Identity::of(pki)?, &beliefs, alpn)
        .map_err(|error| TrustError::Credentials(error.into()))?;
    Ok((client, mutual_server(Identity::of(pki)?, &beliefs, alpn)?))
}

impl Identity {
    fn of(pki: &Pki) -> Result<Self, TrustError> {
        let chain = certificates("chain", &pki.chain)?;
        let length = chain.iter().map(|certificate| certificate.len()).sum();
        if length > PKI_CHAIN_BYTES_MAX {
            return Err(TrustError::ChainTooLong {
                length,
                limit: PKI_CHAIN_BYTES_MAX,
            });
        }
        let key = PrivateKeyDer::from_pem_slice(&pki.key)
            .map_err(|error| wrong("key", "one private key (PKCS #8, PKCS #1 or SEC1)", error))?;
        Ok(Self { chain, key })
    }
}

const CERTIFICATES: &str = "one certificate or more";

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(wrong(what, CERTIFICATES, "there is no certificate in it")),
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(what, CERTIFICATES, error)),
    }
}

fn wrong(
    what: &'static str,
    expected: &'static str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> TrustError {
    TrustError::Pki {
        what,
        expected,
        source: source.into(),
    }
}
