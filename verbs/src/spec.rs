//! `name[:port[:gid]]`, as users write it in `VERBATIM_DEVICE`.

use crate::OpenError;

/// A device, and the port and GID index to use where given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Spec<'a> {
    pub(crate) name: &'a str,
    pub(crate) port: Option<u8>,
    pub(crate) gid: Option<u32>,
}

impl<'a> Spec<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Spec<'a>, OpenError> {
        let bad = |why| OpenError::BadSpec {
            spec: text.to_owned(),
            why,
        };
        let mut parts = text.trim().split(':');
        let name = parts.next().unwrap_or_default();
        if name.is_empty() {
            return Err(bad("the name is empty"));
        }
        let port = match parts.next() {
            None => None,
            Some(p) => match p.parse::<u8>() {
                Ok(p) if p > 0 => Some(p),
                _ => return Err(bad("the port is not a number from 1 to 255")),
            },
        };
        let gid = match parts.next() {
            None => None,
            Some(g) => match g.parse::<u8>() {
                Ok(g) => Some(u32::from(g)),
                Err(_) => return Err(bad("the GID index is not a number from 0 to 255")),
            },
        };
        if parts.next().is_some() {
            return Err(bad("there is more than a name, a port and a GID index"));
        }
        Ok(Spec { name, port, gid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_formed() {
        let spec = |name, port, gid| Spec { name, port, gid };
        assert_eq!(Spec::parse("soft0").unwrap(), spec("soft0", None, None));
        assert_eq!(
            Spec::parse("mlx5_0:2").unwrap(),
            spec("mlx5_0", Some(2), None)
        );
        assert_eq!(
            Spec::parse(" mlx5_0:1:3\n").unwrap(),
            spec("mlx5_0", Some(1), Some(3))
        );
    }

    #[test]
    fn malformed() {
        for text in [
            "", ":1", "a:", "a:0", "a:x", "a:256", "a:1:", "a:1:x", "a:1:256", "a:1:2:3", "a:-1",
        ] {
            let e = Spec::parse(text).unwrap_err();
            assert!(matches!(e, OpenError::BadSpec { .. }), "{text}: {e}");
        }
    }
}
