"""A proxy: all doors of a cluster behind one address, for clients that can reach no broker themselves.

It holds nothing. What it knows of topics and leaders it has from METADATA, and asks again when that proves old; a call
goes to the brokers that lead what it names, under the identity that it came with, and again where its row in the table
of calls allows that. So a broker may die without a client's connection noticing, and a client may change proxies
between any two calls: whom a lease, a sequence or a membership belongs to is said by the call, never by the connection.

It is a client of the brokers and stands on `forwarding`, as a broker does; it needs no disk and nothing of a broker.
"""
