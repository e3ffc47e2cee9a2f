use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};

use super::TrustError;

/// What one side shows: its certificates, its own first, and the key of that one.
pub(super) struct Identity {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
}

/// What one side believes, and by which clock.
pub(super) struct Beliefs {
    pub(super) roots: Arc<RootCertStore>,
    pub(super) clock: Arc<dyn TimeProvider>,
}

/// Both ends are roost of the same major version, so there is nothing to choose: one key exchange, AES with 128 bits, and
/// `ChaCha20` for machines without its instructions.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    })
}

/// The dialling side, both known to each other by certificates.
pub(super) fn mutual_client(
    identity: Identity,
    beliefs: &Beliefs,
    alpn: &[u8],
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let config = ClientConfig::builder_with_details(provider(), beliefs.clock.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(beliefs.roots.clone())
        .with_client_auth_cert(identity.chain, identity.key)?;
    Ok(once(config, alpn))
}

/// The accepting side, both known to each other by certificates.
pub(super) fn mutual_server(
    identity: Identity,
    beliefs: &Beliefs,
    alpn: &[u8],
) -> Result<Arc<ServerConfig>, TrustError> {
    // The peer has one certificate to show: names of roots, of which there may be hundreds, would not help it choose.
    let verifier = WebPkiClientVerifier::builder_with_provider(beliefs.roots.clone(), provider())
        .clear_root_hint_subjects()
        .build()
        .map_err(|error| TrustError::Credentials(error.into()))?;
    ServerConfig::builder_with_details(provider(), beliefs.clock.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map(|builder| builder.with_client_cert_verifier(verifier))
        .and_then(|builder| builder.with_single_cert(identity.chain, identity.key))
        .map(|config| no_tickets(config, alpn))
        .map_err(|error| TrustError::Credentials(error.into()))
}

/// The dialling side of a join, which believes any certificate: the proofs after it hold this very TLS session.
pub(super) fn open_client(alpn: &[u8]) -> Result<Arc<ClientConfig>, rustls::Error> {
    let config = ClientConfig::builder_with_details(provider(), Arc::new(NoClock))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider())))
        .with_no_client_auth();
    Ok(once(config, alpn))
}

/// The accepting side of a join.
pub(super) fn open_server(identity: Identity, alpn: &[u8]) -> Result<Arc<ServerConfig>, rustls::Error> {
    let config = ServerConfig::builder_with_details(provider(), Arc::new(NoClock))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(identity.chain, identity.key)?;
    Ok(no_tickets(config, alpn))
}

/// Each connection proves itself anew: no tickets, no data before the handshake's end.
fn once(mut config: ClientConfig, alpn: &[u8]) -> Arc<ClientConfig> {
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![alpn.to_vec()];
    // The name is of no use to who routes by it, and tells an onlooker the job.
    config.enable_sni = false;
    Arc::new(config)
}

fn no_tickets(mut config: ServerConfig, alpn: &[u8]) -> Arc<ServerConfig> {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

/// The job's own certificates are valid at any time that a machine may show, so no machine is asked: one whose clock is
/// wrong by years joins like the others.
#[derive(Debug)]
pub(super) struct NoClock;

impl TimeProvider for NoClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_hours(500_000)))
    }
}

/// Believes any certificate, but not that somebody else's is the peer's: the signature over the handshake is checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        None
    }
}
