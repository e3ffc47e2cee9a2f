use std::fmt;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, date_time_ymd,
};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use super::TrustError;
use crate::id::{HostId, JobId};

/// What one host shows to the others of its job, and knows them by. It is a secret of the job: whoever has it can be any
/// of its hosts (and so run code in it).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// The certificate of the job's authority, DER.
    pub authority: Vec<u8>,
    /// This host's certificate, DER.
    pub certificate: Vec<u8>,
    /// The key of this certificate, DER (PKCS #8).
    pub key: Vec<u8>,
    /// Whom the certificate names.
    pub host: HostId,
    /// The job.
    pub job: JobId,
    /// A key that all hosts of the job share; proofs are made with it, with and without TLS.
    pub secret: [u8; 32],
    /// Connections are plain TCP: the proofs are all there is, and nothing is encrypted.
    pub plaintext: bool,
}

/// Secrets stay out of logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("host", &self.host)
            .field("job", &self.job)
            .field("plaintext", &self.plaintext)
            .finish_non_exhaustive()
    }
}

/// The job's own certificate authority. It lives in the root's memory alone, as long as the job.
pub struct Authority {
    job: JobId,
    secret: [u8; 32],
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes the authority of a job, with a new key.
    ///
    /// # Errors
    ///
    /// [`TrustError::Issue`] and [`TrustError::Random`], when the system gives no random numbers.
    pub fn new(job: JobId) -> Result<Self, TrustError> {
        let mut params = unlimited(format!("roost job {job}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(TrustError::Issue)?;
        let certificate = params.self_signed(&key).map_err(TrustError::Issue)?;
        Ok(Self {
            job,
            secret: random()?,
            certificate,
            issuer: Issuer::new(params, key),
        })
    }

    /// Makes the credentials of one host.
    ///
    /// # Errors
    ///
    /// [`TrustError::Issue`], when the system gives no random numbers.
    pub fn issue(&self, host: HostId) -> Result<Credentials, TrustError> {
        let name = host_name(self.job, host);
        let mut params = unlimited(format!("roost {host}"));
        params.subject_alt_names = CertificateParams::new(vec![name])
            .map_err(TrustError::Issue)?
            .subject_alt_names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(TrustError::Issue)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(TrustError::Issue)?;
        Ok(Credentials {
            authority: self.certificate.der().to_vec(),
            certificate: certificate.der().to_vec(),
            key: key.serialize_der(),
            host,
            job: self.job,
            secret: self.secret,
            plaintext: false,
        })
    }
}

/// Secrets stay out of logs.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("job", &self.job)
            .finish_non_exhaustive()
    }
}

/// The name in the certificate of a host. It is never looked up.
pub(super) fn host_name(job: JobId, host: HostId) -> String {
    format!("{host}.{job}.roost")
}

/// A throw-away certificate, for the TLS of a join: no one checks it, the proofs hold the two ends together.
pub(super) fn throw_away() -> Result<(Vec<u8>, Vec<u8>), TrustError> {
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(TrustError::Issue)?;
    let certificate = unlimited("roost".to_owned())
        .self_signed(&key)
        .map_err(TrustError::Issue)?;
    Ok((certificate.der().to_vec(), key.serialize_der()))
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], TrustError> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| TrustError::Random)?;
    Ok(bytes)
}

/// A certificate that no clock makes invalid: it ends with its job, whose key nobody has any more.
fn unlimited(common_name: String) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(1975, 1, 1);
    params.not_after = date_time_ymd(4096, 1, 1);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}
