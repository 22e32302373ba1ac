//! What is behind an error stays, whatever is put in front of it.

use super::directory::DirectoryError;
use super::{during, errno};
use std::io;

#[test]
fn the_errno_behind_an_error_is_found_whatever_is_put_in_front_of_it() {
    let system = || io::Error::from_raw_os_error(libc::EMFILE);
    assert_eq!(errno(&system()), Some(libc::EMFILE));
    let once = during("opening", system());
    assert_eq!(errno(&once), Some(libc::EMFILE));
    assert_eq!(once.kind(), system().kind());
    assert_eq!(errno(&during("more", once)), Some(libc::EMFILE));

    let failed = |step, source| DirectoryError::System {
        path: "/somewhere".into(),
        choice: "it was asked for".to_owned(),
        step,
        source,
    };
    let folder = io::Error::from(failed("making the folder", system()));
    assert_eq!(errno(&folder), Some(libc::EMFILE));
    assert!(folder.to_string().contains("/somewhere"), "{folder}");
    let lock = io::Error::from(failed("locking", during("fcntl", system())));
    assert_eq!(errno(&lock), Some(libc::EMFILE));
    let relative = DirectoryError::Relative {
        path: "here".into(),
    };
    let relative = io::Error::from(relative);
    assert_eq!(errno(&relative), None);
    assert_eq!(relative.kind(), io::ErrorKind::InvalidInput);
}
