use std::io;

use crate::limits::HANDSHAKE_BYTES_MAX;

/// Why a connection between hosts was refused, or could not be begun.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// A join key is not 64 hexadecimal digits. What was given instead is not shown: it may be most of a key.
    #[error(
        "the join key has {found} characters, expected 64 hexadecimal digits: make one with `python -m roost key`"
    )]
    KeyForm {
        /// Characters without the white space around them.
        found: usize,
    },
    /// A file of the user's own PKI does not hold what it should.
    #[error("the {what} of the own PKI cannot be used, expected PEM with {expected}")]
    Pki {
        /// Which of the three.
        what: &'static str,
        /// What should be in it.
        expected: &'static str,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The certificates of the user's own PKI do not fit a handshake.
    #[error(
        "the chain of the own PKI has {length} bytes, at most {limit} fit a handshake: leave out what peers have"
    )]
    ChainTooLong {
        /// Bytes of all its certificates.
        length: usize,
        /// The most that may be.
        limit: usize,
    },
    /// Certificates were given and then not used.
    #[error("an own PKI and plain TCP were both asked for: leave out one")]
    PkiInPlaintext,
    /// The name or address that was dialled cannot stand in a certificate.
    #[error("{name:?} is neither a host name nor an address, so no certificate can name it")]
    Name {
        /// What was dialled.
        name: String,
    },
    /// Certificates could not be made.
    #[error("the job's certificates could not be made")]
    Issue(#[source] rcgen::Error),
    /// This side's certificates or keys were refused by the TLS library.
    #[error("this side's credentials cannot be used")]
    Credentials(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random,

    /// The peer does not hold the same key, or bytes were changed on the way.
    #[error(
        "the peer's proof does not fit: give both sides the same join key, and check that nothing between them changes bytes"
    )]
    OtherKey,
    /// The peer refused what this side has shown.
    #[error("the peer refused this side's proof: give both sides the same join key")]
    Refused,
    /// The peer refused this side with a TLS alert.
    #[error(
        "the peer refused this side's certificate ({alert}): give both sides certificates of the same authority"
    )]
    RefusedCertificate {
        /// Its alert, as TLS calls it.
        alert: String,
    },
    /// The peer's certificate was issued by somebody else.
    #[error(
        "the peer's certificate is of another authority: it belongs to another job, or to other roots than those given here"
    )]
    OtherAuthority,
    /// The peer is not the one that was dialled.
    #[error(
        "the peer's certificate does not name {expected}: another host answers there, or its certificate lacks this name"
    )]
    OtherName {
        /// Who was dialled.
        expected: String,
    },
    /// The peer's certificate is of another time.
    #[error("the peer's certificate has expired or is not valid yet: renew it, or set this machine's date")]
    OutOfDate,
    /// The peer has shown no certificate.
    #[error(
        "the peer has no certificate: give it one of the same roots, or start this side without an own PKI"
    )]
    NoCertificate,
    /// The peer's certificate is wrong in another way.
    #[error("the peer's certificate cannot be used")]
    Certificate(#[source] rustls::Error),
    /// The peer does not speak TLS.
    #[error("the peer does not speak TLS: it allows plain TCP and this side does not, or it is not roost")]
    NotTls,
    /// The peer speaks TLS where plain TCP was asked for.
    #[error("the peer wants TLS and this side has insecure_plaintext: give both the same")]
    PeerWantsTls,
    /// The peer does not speak roost's handshake.
    #[error("the peer does not speak roost's handshake: {first:02x?} came first")]
    NotRoost {
        /// What came instead of the first bytes.
        first: [u8; 8],
    },
    /// One side opens a control connection, the other one a lane.
    #[error(
        "the peer opens another kind of connection: the two are in different states, or of different versions"
    )]
    OtherKind,
    /// The peer breaks TLS.
    #[error("the peer broke the TLS handshake")]
    Tls(#[source] rustls::Error),
    /// The peer sends more than a handshake may have.
    #[error("the peer sent more than {HANDSHAKE_BYTES_MAX} bytes before it proved itself")]
    TooMuch,
    /// The peer has closed the connection.
    #[error("the peer closed the connection {during}")]
    Closed {
        /// In which state.
        during: &'static str,
    },
    /// The connection failed.
    #[error("the connection failed in its handshake")]
    Io(#[source] io::Error),
    /// The handshake has failed before.
    #[error("the handshake has failed before")]
    Over,
}

impl TrustError {
    /// Whether the two sides understood each other, and one did not accept who the other is: trying again changes nothing.
    pub fn is_authentication(&self) -> bool {
        matches!(
            self,
            Self::OtherKey
                | Self::Refused
                | Self::RefusedCertificate { .. }
                | Self::OtherAuthority
                | Self::OtherName { .. }
                | Self::OutOfDate
                | Self::NoCertificate
                | Self::Certificate(_)
                | Self::NotTls
                | Self::PeerWantsTls
        )
    }
}

/// What an error of the TLS library means here, with a peer of this name.
pub(super) fn explain(error: rustls::Error, peer: &str) -> TrustError {
    use rustls::{AlertDescription as Alert, CertificateError as Certificate, Error, InvalidMessage};
    match error {
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => TrustError::NotTls,
        Error::NoApplicationProtocol | Error::AlertReceived(Alert::NoApplicationProtocol) => {
            TrustError::OtherKind
        }
        Error::NoCertificatesPresented => TrustError::NoCertificate,
        Error::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature) => {
            TrustError::OtherAuthority
        }
        Error::InvalidCertificate(
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. },
        ) => TrustError::OtherName {
            expected: peer.to_owned(),
        },
        Error::InvalidCertificate(
            Certificate::Expired
            | Certificate::ExpiredContext { .. }
            | Certificate::NotValidYet
            | Certificate::NotValidYetContext { .. },
        ) => TrustError::OutOfDate,
        Error::InvalidCertificate(_) => TrustError::Certificate(error),
        Error::AlertReceived(
            alert @ (Alert::AccessDenied
            | Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRequired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::DecryptError
            | Alert::UnknownCA
            | Alert::UnsupportedCertificate),
        ) => TrustError::RefusedCertificate {
            alert: format!("{alert:?}"),
        },
        error => TrustError::Tls(error),
    }
}
