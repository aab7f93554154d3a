//! Host names that requests may use.
//!
//! A page of another site can let its own name resolve to this machine (DNS rebinding): its requests then come from the
//! visitor's browser and look like ours except for `Host`. Only known names are accepted; addresses cannot be rebound.

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{Version, header};
use std::net::IpAddr;

use crate::error::ApiError;

/// The allowed hosts.
#[derive(Clone, Debug)]
pub struct AllowedHosts {
    bound: IpAddr,
    names: Vec<String>,
}

impl AllowedHosts {
    /// Loopback names, the bound address (any address if unspecified), and these names.
    pub fn new(bound: IpAddr, names: &[String]) -> Self {
        Self { bound, names: names.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    /// # Errors
    /// When a request has no host, several, or an unknown one.
    pub fn check(&self, request: &Request) -> Result<(), ApiError> {
        let bad = |reason: &str| ApiError::BadRequest(reason.into());
        let mut headers = request.headers().get_all(header::HOST).iter();
        let host = match (headers.next(), headers.next()) {
            (None, _) if request.version() == Version::HTTP_11 => return Err(bad("the `Host` header is missing")),
            (None, _) => None,
            (Some(host), None) => Some(host),
            (Some(_), Some(_)) => return Err(bad("more than one `Host` header")),
        };
        let host = match host {
            None => None,
            Some(host) => {
                let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
                // `user@host` is not a valid `Host`
                let host = host.filter(|host| !host.as_str().contains('@'));
                Some(host.ok_or_else(|| bad("`Host` is not a host with an optional port"))?)
            }
        };
        // a host in the request target overrides the header
        for host in request.uri().authority().into_iter().chain(&host) {
            if !self.allows(host.host()) {
                return Err(ApiError::UnknownHost(host.host().to_string()));
            }
        }
        Ok(())
    }

    fn allows(&self, host: &str) -> bool {
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = address.parse::<IpAddr>() {
            return address.is_loopback() || address == self.bound || self.bound.is_unspecified();
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        host == "localhost" || host.ends_with(".localhost") || self.names.contains(&host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::Request as HttpRequest;

    fn check(bound: &str, hosts: &[&str]) -> Result<(), ApiError> {
        let mut request = HttpRequest::builder().uri("/v2");
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        let hosts = AllowedHosts::new(bound.parse().unwrap(), &["Regard.example".into()]);
        hosts.check(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn loopback_names_the_bound_address_and_names_that_were_added_are_ours() {
        for host in [
            "localhost",
            "LocalHost:8000",
            "app.localhost:1",
            "127.0.0.1:8000",
            "127.8.8.8",
            "[::1]:8000",
            "192.168.1.7:8000",
            "regard.example",
            "REGARD.example.:443",
        ] {
            assert_eq!(check("192.168.1.7", &[host]), Ok(()), "{host}");
        }
        assert_eq!(check("0.0.0.0", &["10.1.2.3:8000"]), Ok(()), "an address cannot be rebound");
        assert_eq!(check("::", &["[fe80::1]:8000"]), Ok(()));
    }

    #[test]
    fn names_of_others_no_host_and_two_hosts_are_refused() {
        for host in ["evil.example", "localhost.evil.example", "evil-localhost", "10.1.2.3", "127.0.0.1.evil.example"] {
            let error = check("127.0.0.1", &[host]).unwrap_err();
            assert_eq!(error, ApiError::UnknownHost(host.into()));
            assert_eq!(error.status(), 421);
        }
        assert_eq!(check("0.0.0.0", &["evil.example"]).unwrap_err().status(), 421);
        for wrong in [&[][..], &["localhost", "localhost"], &["evil@localhost"], &["a b"], &[""]] {
            assert_eq!(check("127.0.0.1", wrong).unwrap_err().status(), 400, "{wrong:?}");
        }
    }

    #[test]
    fn a_target_with_a_host_of_its_own_is_checked_too() {
        let request = HttpRequest::builder().uri("http://evil.example/v2").header(header::HOST, "localhost");
        let hosts = AllowedHosts::new("127.0.0.1".parse().unwrap(), &[]);
        let error = hosts.check(&request.body(Body::empty()).unwrap()).unwrap_err();
        assert_eq!(error, ApiError::UnknownHost("evil.example".into()));
    }
}
