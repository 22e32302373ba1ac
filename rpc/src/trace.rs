//! Events for `tracing`, with the feature of that name, of steps that are no part of a call that goes well.

/// As `tracing::event!` with a level's name; nothing without the feature.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($rest:tt)*) => {
        ::tracing::event!(target: "rpc", ::tracing::Level::$level, $($rest)*)
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($level:ident, $($name:ident $(= $(%)? $(?)? $value:expr)?,)* $text:literal) => {{
        $(let _ = (event!(@used $name $(= $value)?));)*
    }};
    (@used $name:ident) => { &$name };
    (@used $name:ident = $value:expr) => { &$value };
}

pub(crate) use event;
