//! Mutual proof that both ends of a connection know one secret, before anything else is sent on it.
//!
//! ```text
//! who connects                       who listens
//! MAGIC, nonce a            ->
//!                           <-       MAGIC, nonce b, HMAC(secret, "listens" a b)
//! HMAC(secret, "connects" a b) ->
//! ```
//!
//! So neither end reveals anything to a stranger, and a recording of another connection proves nothing. Later
//! bytes are neither encrypted nor signed: the network between the machines must be trusted, or tunnelled.
//! Source: Krawczyk, Bellare, Canetti, "HMAC: Keyed-Hashing for Message Authentication", RFC 2104.
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use tensor::quoted::counted;

/// Error kind of a connection with another program; the error's text is what it sent first.
pub(super) const STRANGER: io::ErrorKind = io::ErrorKind::Unsupported;

/// The first bytes that each end of a connection sends.
const MAGIC: &[u8; 8] = b"equipart";
/// Bytes of a nonce, and of a proof.
const LEN: usize = 32;

/// A secret of the processes of a run, or none: then any process that can connect is accepted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Option<Arc<[u8]>>);

impl fmt::Debug for Secret {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(if self.is_none() { "no secret" } else { "a secret" })
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    Connects,
    Listens,
}

/// Reads the first bytes that the other end sends.
fn greeted(by: &mut impl Read) -> io::Result<()> {
    let mut magic = [0; MAGIC.len()];
    by.read_exact(&mut magic)?;
    let first = String::from_utf8_lossy(&magic).into_owned();
    if magic == *MAGIC { Ok(()) } else { Err(io::Error::new(STRANGER, first)) }
}

impl Secret {
    /// Smallest length of a secret, in bytes.
    pub const LEAST: usize = 16;

    /// Makes a secret of these bytes, without white space around them.
    ///
    /// # Errors
    /// In one sentence: there are too few bytes. `origin` names their source.
    pub fn new(bytes: &[u8], origin: &str) -> Result<Self, String> {
        let bytes = bytes.trim_ascii();
        if bytes.len() < Self::LEAST {
            let (len, least) = (counted(bytes.len(), "byte"), Self::LEAST);
            return Err(format!(
                "the secret of {origin} has {len}; it needs {least} or more, such as \
                 `openssl rand -hex 32` prints"
            ));
        }
        Ok(Self(Some(bytes.into())))
    }
    /// Draws a secret: 64 random hexadecimal digits.
    ///
    /// # Errors
    /// In one sentence: the system gives no random numbers.
    pub fn drawn() -> Result<String, String> {
        let mut words = [0u64; LEN / size_of::<u64>()];
        let drawn = getrandom::fill(bytemuck::bytes_of_mut(&mut words));
        drawn.map_err(|why| format!("the secret of a run cannot be drawn: {why}"))?;
        Ok(words.map(|word| format!("{word:016x}")).concat())
    }
    /// True if there is no secret.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }
    fn proof(&self, by: ConnectionEnd, nonces: [&[u8; LEN]; 2]) -> Hmac<Sha256> {
        let key = self.0.as_deref().unwrap_or_default();
        let mut proof = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
        proof.update(if by == ConnectionEnd::Connects { b"connects" } else { b"listens" });
        for nonce in nonces {
            proof.update(nonce);
        }
        proof
    }
    /// Proves to the other end that this end knows the secret, and checks the other end's proof. The
    /// listening end proves first.
    ///
    /// # Errors
    /// Errors of the connection; [`io::ErrorKind::PermissionDenied`] if the other end does not know the
    /// secret; [`STRANGER`] if it is another program.
    pub(super) fn displayed(&self, on: &mut (impl Read + Write), by: ConnectionEnd) -> io::Result<()> {
        let [mut own, mut theirs, mut proof] = [[0; LEN]; 3];
        getrandom::fill(&mut own).map_err(|why| io::Error::other(format!("cannot draw a nonce: {why}")))?;
        let denied = || io::Error::new(io::ErrorKind::PermissionDenied, "it does not know the secret");
        match by {
            ConnectionEnd::Connects => {
                on.write_all(&[&MAGIC[..], &own].concat())?;
                greeted(on)?;
                on.read_exact(&mut theirs)?;
                on.read_exact(&mut proof)?;
                let nonces = [&own, &theirs];
                self.proof(ConnectionEnd::Listens, nonces).verify_slice(&proof).map_err(|_| denied())?;
                on.write_all(&self.proof(by, nonces).finalize().into_bytes())
            }
            ConnectionEnd::Listens => {
                greeted(on)?;
                on.read_exact(&mut theirs)?;
                let nonces = [&theirs, &own];
                let answer = [&MAGIC[..], &own, &self.proof(by, nonces).finalize().into_bytes()].concat();
                on.write_all(&answer)?;
                on.read_exact(&mut proof)?;
                self.proof(ConnectionEnd::Connects, nonces).verify_slice(&proof).map_err(|_| denied())
            }
        }
    }
}
