"""A pretend Kubernetes API server over a `Store`, for the product and for kubectl.

`server` listens and answers, `calls` reads a request, `catalogue` knows the kinds (built in, and by
CustomResourceDefinition), `reading`, `watching` and `writing` do the work. Below them `admission` (with `schema` and
`built_in`) says what may be stored, `patches`, `selectors`, `tables`, `subresources` and `events` are what their
names say; `discovery` and `reviews` answer what has no object behind it; `refusals` are the words of a no.
Invariant: where it differs from a real kube-apiserver it is wrong. tests/functional/test_api.py runs unchanged on both.
"""
