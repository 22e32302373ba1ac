//! Control connections over TLS.
//!
//! What is worth protecting there are numbers of queue pairs and keys of memory: whoever has them, and is on the RDMA network, can write
//! where a peer may. They are said after the TLS handshake, in which both ends show a certificate:
//!
//! ```text
//!   client                                  server
//!   TLS 1.3: certificate of the server, certificate of the client
//!                                    <----  Ready: the client's certificate is good
//!   Hello, and all else as without TLS ---->
//! ```
//!
//! Without the `Ready` a client would be done with the handshake before the server has looked at its certificate. Data on queue pairs is as
//! it was: RDMA adapters encrypt nothing of it by themselves.

mod stream;

pub(crate) use stream::TlsStream;

use crate::handshake::Frame;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use std::fmt;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

/// Why there is no TLS.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Text that should have been PEM and is not, or has nothing of what is wanted.
    #[error("{what}: {why}")]
    Pem {
        /// What was looked for.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Certificates or a key that cannot be used.
    #[error("the {what} cannot be used: {why}")]
    Unusable {
        /// Which.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A name that no certificate can have.
    #[error("{0:?} is no name or address that a certificate could have")]
    Name(String),
    /// The handshake failed: the peer's certificate is not good, or the peer said so of this end's.
    #[error("the TLS handshake failed: {0}")]
    Handshake(String),
    /// The peer ended the connection during the handshake, and did not say why.
    #[error("the peer ended the connection during the TLS handshake (does it speak TLS at all?)")]
    Closed,
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |why: String| TlsError::Pem { what, why };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(error("no certificate in PEM".to_owned())),
        Ok(found) => Ok(found),
        Err(why) => Err(error(why.to_string())),
    }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|why| TlsError::Pem {
        what: "private key",
        why: why.to_string(),
    })
}

fn roots(what: &'static str, pem: &[u8]) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, pem)? {
        roots.add(certificate).map_err(unusable(what))?;
    }
    Ok(Arc::new(roots))
}

fn unusable<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> TlsError {
    move |why| TlsError::Unusable {
        what,
        why: why.to_string(),
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// What a server needs for TLS: its certificate, and which clients it takes. For [`Server::bind_tls`](crate::Server::bind_tls) and
/// [`Server::tls`](crate::Server::tls).
#[derive(Clone)]
pub struct ServerTls(Arc<ServerConfig>);

impl ServerTls {
    /// From PEM text: the server's certificate and those between it and its root, in this order; its private key; and the roots of
    /// certificates that clients must have.
    ///
    /// # Errors
    /// [`TlsError`] names which of them cannot be used.
    pub fn from_pem(
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        client_roots: impl AsRef<[u8]>,
    ) -> Result<ServerTls, TlsError> {
        const ROOTS: &str = "roots of clients' certificates";
        let chain = certificates("certificate of the server", certificate.as_ref())?;
        let key = private_key(key.as_ref())?;
        let roots = roots(ROOTS, client_roots.as_ref())?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(unusable(ROOTS))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(unusable("version of TLS"))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .map_err(unusable("certificate of the server and its key"))?;
        // Connections live long; none is taken up again.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(ServerTls(Arc::new(config)))
    }

    /// A connection whose client is still to say anything.
    pub(crate) fn accept(&self, tcp: TcpStream) -> io::Result<TlsStream> {
        let connection = ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)?;
        Ok(TlsStream::new(
            connection.into(),
            tcp,
            Frame::Ready.encode(),
        ))
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls(..)")
    }
}

/// What a client needs for TLS: its certificate, and which servers it trusts. For [`ClientBuilder::tls`](crate::ClientBuilder::tls).
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    /// `None` for the address that is connected to.
    name: Option<ServerName<'static>>,
}

impl ClientTls {
    /// From PEM text: the client's certificate and those between it and its root, in this order; its private key; and the roots of
    /// certificates that servers must have.
    ///
    /// # Errors
    /// [`TlsError`] names which of them cannot be used.
    pub fn from_pem(
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        server_roots: impl AsRef<[u8]>,
    ) -> Result<ClientTls, TlsError> {
        let chain = certificates("certificate of the client", certificate.as_ref())?;
        let key = private_key(key.as_ref())?;
        let roots = roots("roots of servers' certificates", server_roots.as_ref())?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(unusable("version of TLS"))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(unusable("certificate of the client and its key"))?;
        config.resumption = rustls::client::Resumption::disabled();
        Ok(ClientTls {
            config: Arc::new(config),
            name: None,
        })
    }

    /// The name that the server's certificate must have. Otherwise it must have the address that is connected to.
    ///
    /// # Errors
    /// [`TlsError::Name`] if no certificate can have it.
    pub fn server_name(mut self, name: &str) -> Result<ClientTls, TlsError> {
        let parsed = ServerName::try_from(name.to_owned());
        self.name = Some(parsed.map_err(|_| TlsError::Name(name.to_owned()))?);
        Ok(self)
    }

    /// A connection on which nothing has been said.
    pub(crate) fn connect(&self, tcp: TcpStream, to: IpAddr) -> Result<TlsStream, TlsError> {
        let name = self.name.clone();
        let name = name.unwrap_or_else(|| ServerName::IpAddress(to.into()));
        let connection = ClientConnection::new(Arc::clone(&self.config), name)
            .map_err(|why| TlsError::Handshake(why.to_string()))?;
        Ok(TlsStream::new(connection.into(), tcp, Vec::new()))
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("server_name", &self.name)
            .finish_non_exhaustive()
    }
}

impl TlsError {
    /// What an error of reading or writing during the handshake means.
    pub(crate) fn of(error: &io::Error) -> Option<TlsError> {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        match inner {
            Some(rustls::Error::AlertReceived(alert)) => {
                Some(TlsError::Handshake(format!("the peer says {alert:?}")))
            }
            Some(why) => Some(TlsError::Handshake(why.to_string())),
            None => match error.kind() {
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe => Some(TlsError::Closed),
                _ => None,
            },
        }
    }
}
