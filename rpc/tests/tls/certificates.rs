//! Roots and what they sign.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use rpc::{ClientTls, ServerTls};
use std::sync::atomic::{AtomicU32, Ordering};

/// A root.
pub struct Root(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub struct Certificate {
    pub certificate: String,
    pub key: String,
}

impl Root {
    pub fn new() -> Root {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        // Roots of one name are told apart by their signatures alone.
        static ROOTS: AtomicU32 = AtomicU32::new(0);
        let name = format!("root {}", ROOTS.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Root(CertifiedIssuer::self_signed(params, key).expect("a root"))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// For this name, until that year.
    fn sign(&self, name: &str, until: i32, purpose: ExtendedKeyUsagePurpose) -> Certificate {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().expect("a key");
        Certificate {
            certificate: params.signed_by(&key, &self.0).expect("signed").pem(),
            key: key.serialize_pem(),
        }
    }

    /// A server's, for this name, and which trusts clients of `clients`.
    pub fn server(&self, name: &str, until: i32, clients: &Root) -> ServerTls {
        let own = self.sign(name, until, ExtendedKeyUsagePurpose::ServerAuth);
        ServerTls::from_pem(own.certificate, own.key, clients.pem()).expect("a server's")
    }

    /// A client's, which trusts servers of `servers`.
    pub fn client(&self, until: i32, servers: &Root) -> ClientTls {
        let own = self.client_pem(until);
        ClientTls::from_pem(own.certificate, own.key, servers.pem()).expect("a client's")
    }

    pub fn client_pem(&self, until: i32) -> Certificate {
        self.sign("a-client", until, ExtendedKeyUsagePurpose::ClientAuth)
    }
}
