"""The Kubernetes API, in its own words.

`config` finds the cluster and who we are to it, `api` sends requests, `discovery` learns which kinds are served,
`follow` keeps a local copy equal to the server's, `lease` elects a leader. Below them `kubeconfig` reads files,
`credentials` proves who we are, `transport` makes one exchange, `pace` keeps us polite.
Nothing here knows what a GPU or an idle workload is.
"""
