"""What :mod:`privrob.suite.site` is put together from: what is shown, pages, notebooks, the library reference."""
